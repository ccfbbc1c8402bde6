"""Files of checkpoints: folders and buckets, locks, what killed saves left."""
