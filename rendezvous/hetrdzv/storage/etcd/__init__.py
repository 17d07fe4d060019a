"""State on an etcd cluster, shared by several servers: connections, election of the leader, its store."""
