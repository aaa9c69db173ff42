"""One file a trainer or interface: what it takes and gives, made of the package's values."""
