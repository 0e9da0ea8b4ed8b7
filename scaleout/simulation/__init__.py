"""Program and cluster to result: the event engine, folding of equal ranks, contention, deadlocks."""
