"""SENDING: a schedule is driven against an adapter, in open loop or at a fixed concurrency."""
