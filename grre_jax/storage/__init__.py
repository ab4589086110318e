"""Files and folders: files that are written whole, locks, staging folders, and folders in object
stores.
"""
