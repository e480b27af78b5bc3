from tokenmill.hardware.openmp import load_openmp

# Before PyTorch is imported: how long idle threads wait is settled when the runtime is loaded.
load_openmp()
