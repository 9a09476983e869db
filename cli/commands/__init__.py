"""The commands of `tidelog`, one file each: options, calls, output."""
