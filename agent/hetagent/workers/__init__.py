"""The worker processes of a round: started, watched, ended."""
