"""Training that stays within a box of networks, so that what was proved for the box stays true."""
