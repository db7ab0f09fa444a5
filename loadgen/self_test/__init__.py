"""What this machine can offer as a client, found by driving a mock server that logs the truth."""
