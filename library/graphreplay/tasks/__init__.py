"""Small YOLO-like networks with their losses, data and metrics: the tasks that replay is tried and proved on."""
