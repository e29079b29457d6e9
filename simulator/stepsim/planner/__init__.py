"""How a training job scales: step time, memory and communication on any number of GPUs, before they are bought."""
