"""The testing kit."""
