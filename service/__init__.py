"""The service: takes jobs in, plans and queues their cells, stores and shows what the workers report."""
