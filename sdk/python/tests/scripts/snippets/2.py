import fastgpu
job = fastgpu.make_job(name=args.name,
                      run_name=f"{args.name}-{args.machines}",
                      num_tasks=args.machines,
                      image_name=IMAGE_NAME,
                      instance_type=INSTANCE_TYPE)
