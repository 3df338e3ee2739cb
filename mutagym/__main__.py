"""`python -m mutagym`: the command."""

from mutagym import main

main()
