# 2. Upload perseus bert code.
job.run('yum install -y unzip')
job.upload('perseus-bert')

# 3. Download pretrain model and dataset.
BERT_CHINESE_BASE_DIR = '/root/chinese_L-12_H-768_A-12'
DATA_DIR = '/root/toutiao_data'
job.run('wget -c -t 10 https://public-ai-datasets.oss-cn-huhehaote.aliyuncs.com/chinese_L-12_H-768_A-12.zip  && unzip chinese_L-12_H-768_A-12.zip')
job.run('wget -c -t 10 https://public-ai-datasets.oss-cn-huhehaote.aliyuncs.com/toutiao_data.tgz && tar xvf toutiao_data.tgz')
