"""The long version of the attacks, for `make chaos`: see `__main__`."""
