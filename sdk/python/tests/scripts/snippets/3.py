job.run('conda activate tensorflow_1.14.0_cu10.0_py36')
