"""What belongs to the person at the keyboard: clusters in a config file, completion of commands and names."""
