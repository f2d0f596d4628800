"""The sources of the torch bridge, shipped because it is compiled where it is used."""
