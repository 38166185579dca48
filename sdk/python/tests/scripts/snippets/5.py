bert_classifier_cmd = ['python run_classifier.py',
                     '--task_name=news',
                     '--do_train=true',
                     '--do_eval=true',
                     f'--data_dir={DATA_DIR}',
                     f'--vocab_file={BERT_CHINESE_BASE_DIR}/vocab.txt',
                     f'--bert_config_file={BERT_CHINESE_BASE_DIR}/bert_config.json',
                     f'--init_checkpoint={BERT_CHINESE_BASE_DIR}/bert_model.ckpt',
                     '--max_seq_length=128',
                     '--train_batch_size=48',
                     '--learning_rate=8e-5',
                     '--num_train_epochs=3.0',
                     '--warmup_proportion=0.8',
                     '--output_dir=/root/output_dir',
                     '--use_amp=true',
                     '--use_perseus=true',
                     '--use_xla=true']

cmd = mpi_cmd + bert_classifier_cmd
cmd = " ".join(cmd)
job.tasks[0].run(f'echo {cmd} > {job.logdir}/task-cmd')
job.tasks[0].run(cmd, non_blocking=True)
print(f"Logging to {job.logdir}")
