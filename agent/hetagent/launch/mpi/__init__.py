"""`--launch mpi`: programs written for mpirun, without ssh."""
