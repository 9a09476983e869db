"""The commands of `tidelog`, a file each: options, calls, output."""
