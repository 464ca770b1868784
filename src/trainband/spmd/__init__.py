"""One engine for every mesh of devices that computes one program: of one device, or of many processes."""
