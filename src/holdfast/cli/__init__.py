"""The command line. Knows words, files and exit codes; decides nothing about rollouts."""
