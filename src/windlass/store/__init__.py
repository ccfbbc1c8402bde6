"""Store for data, addressed by content: immutable versions, local or in a bucket, transfers, and gc."""
