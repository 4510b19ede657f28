"""What a run leaves for people to read: tables and figures."""
