"""One file a verb of `bench`: parse, call one function, print, exit code."""
