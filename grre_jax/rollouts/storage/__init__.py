"""Storage of rollout folders: the interface, local disks, object stores, shard files."""
