# 5. Stop Instances
job.stop()

# 6. Terminate Instances (Optional)
# job.kill()
