"""What servers and clients say to each other: requests, replies, errors, ids, versions."""
