"""Amazon EC2, through boto3."""
