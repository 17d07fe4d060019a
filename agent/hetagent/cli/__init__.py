"""The command: reads the command line, puts an agent together and says how the job ended."""
