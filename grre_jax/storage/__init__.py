"""Files that are written whole, locks, and folders in object stores."""
