if [[ ${DLS_TASK_NUMBER} == 1 ]]; then
    # 单机
    config="--selected_gpus=0,1,2,3,4,5,6,7 --log_dir mylog"
    python -m paddle.distributed.launch ${config} train.py
else
    # 分布式
    node_host_str=""
    for i in $(seq 0 $[DLS_TASK_NUMBER-1])
    do
        env_key=BATCH_CUSTOM${i}_HOSTS
        if [[ $i == $[DLS_TASK_NUMBER-1] ]]; then
            node_host_str="${node_host_str}$(eval echo '$'$env_key)"
        else
            node_host_str="${node_host_str}$(eval echo '$'$env_key),"
        fi
    done

    node_hosts=${node_host_str}
    node_ip=${BATCH_CURRENT_HOST}

    python -m paddle.distributed.launch \
        --cluster_node_ips=${node_hosts} \
        --node_ip=${node_ip} \
        --started_port=${BATCH_CURRENT_PORT} \
        --selected_gpus=0,1,2,3,4,5,6,7 \
        train_with_fleet.py
fi
