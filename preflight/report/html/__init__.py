"""One page per run that opens anywhere: no network, no address, whatever nodes say is text."""
