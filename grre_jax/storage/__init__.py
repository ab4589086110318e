"""Files and folders, on disk and in object stores: paths, files that are written whole, locks,
staging folders, workspaces, and a local cache of remote files.
"""
