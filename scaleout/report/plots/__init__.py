"""Pictures, by what they show."""
