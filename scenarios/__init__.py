"""The shipped scenario files; they travel inside the wheel."""
