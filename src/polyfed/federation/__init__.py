"""What a federation is: methods, clients and a server, what may travel between them, how it is counted."""
