"""Results to files: tables, timelines, pictures."""
