//! Which platforms a text was written for, from the variables and the files it names.

use muster_model::Face;

/// Variables that only one platform has, by how they begin.
const PREFIXES: [(&str, Face); 6] = [
    ("DLWS_", Face::Dlws),
    ("DLTS_", Face::Dlws),
    ("DLS_", Face::Modelarts),
    ("BATCH_CUSTOM", Face::Modelarts),
    ("BATCH_CURRENT_", Face::Modelarts),
    ("BATCH_TASK_CURRENT_", Face::Modelarts),
];

/// The same by their whole names, where others begin like them.
const NAMES: [(&str, Face); 19] = [
    // The rank table of MindSpore before 1.0, for which scripts of Apulis were written; nothing has read it since.
    ("MINDSPORE_HCCL_CONFIG_PATH", Face::Dlws),
    ("CUSTOM_PORTS", Face::Dlc),
    ("BATCH_JOB_ID", Face::Modelarts),
    ("MA_HOME", Face::Modelarts),
    ("MA_JOB_DIR", Face::Modelarts),
    ("MA_MOUNT_PATH", Face::Modelarts),
    ("MA_LOG_DIR", Face::Modelarts),
    ("MA_SCRIPT_INTERPRETER", Face::Modelarts),
    ("MA_CURRENT_IP", Face::Modelarts),
    ("MA_CURRENT_HOST", Face::Modelarts),
    ("MA_CURRENT_INSTANCE_NAME", Face::Modelarts),
    ("MA_NUM_GPUS", Face::Modelarts),
    ("MA_NUM_HOSTS", Face::Modelarts),
    ("MA_TASK_NAME", Face::Modelarts),
    ("MA_VJ_NAME", Face::Modelarts),
    ("VC_TASK_INDEX", Face::Modelarts),
    ("VC_WORKER_NUM", Face::Modelarts),
    ("VC_WORKER_HOSTS", Face::Modelarts),
    ("ib_config", Face::Dlws),
];

/// Files and folders of one platform.
const PLACES: [(&str, Face); 5] = [
    ("/home/work/run_train.sh", Face::Modelarts),
    ("/home/work/user-job-dir", Face::Modelarts),
    ("/home/ma-user", Face::Modelarts),
    ("jobstart_hccl.json", Face::Modelarts),
    ("/pod.env", Face::Dlws),
];

/// Every platform that a text names something of, with what it names. Comments say nothing.
pub(super) fn look(text: &str) -> Vec<(Face, String)> {
    let mut found: Vec<(Face, String)> = Vec::new();
    let mut add = |face: Face, name: &str| {
        if !found.iter().any(|(known, _)| *known == face) {
            found.push((face, name.to_owned()));
        }
    };
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        for word in line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if let Some((face, name)) = named(word) {
                add(face, name);
            }
        }
        for (place, face) in PLACES {
            if line.contains(place) {
                add(face, place);
            }
        }
        if let Some(name) = counts_nodes(line) {
            add(Face::Dlc, name);
        }
    }
    found
}

fn named(word: &str) -> Option<(Face, &str)> {
    let prefix = PREFIXES.iter().find(|(prefix, _)| word.starts_with(prefix));
    let name = || NAMES.iter().find(|(name, _)| word == *name);
    prefix.or_else(name).map(|(_, face)| (*face, word))
}

/// Elsewhere `WORLD_SIZE` and `RANK` count processes.
fn counts_nodes(line: &str) -> Option<&'static str> {
    let squeezed: String = line
        .chars()
        .filter(|c| !matches!(c, '"' | '\'' | '{' | '}'))
        .map(|c| if c == '=' { ' ' } else { c })
        .collect();
    let words: Vec<&str> = squeezed.split_whitespace().collect();
    words.windows(2).find_map(|pair| match pair {
        ["--nnodes" | "--nnode", value] => {
            variable(value, "$WORLD_SIZE").then_some("WORLD_SIZE for the number of nodes")
        }
        ["--node_rank" | "--node-rank", value] => {
            variable(value, "$RANK").then_some("RANK for the number of a node")
        }
        _ => None,
    })
}

/// `$RANK` and `${RANK:-0}`, of which the braces are gone.
fn variable(word: &str, name: &str) -> bool {
    let rest = word.strip_prefix(name);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_known_by_what_only_they_have() {
        for (text, expected) in [
            ("horovodrun -p $DLWS_SD_worker0_SSH_PORT x", Some((Face::Dlws, "DLWS_SD_worker0_SSH_PORT"))),
            ("-hostfile /home/$U/ib_config", Some((Face::Dlws, "ib_config"))),
            ("export MINDSPORE_HCCL_CONFIG_PATH=$PATH1", Some((Face::Dlws, "MINDSPORE_HCCL_CONFIG_PATH"))),
            ("os.environ['DLS_TASK_NUMBER']", Some((Face::Modelarts, "DLS_TASK_NUMBER"))),
            ("env_key=BATCH_CUSTOM${i}_HOSTS", Some((Face::Modelarts, "BATCH_CUSTOM"))),
            ("a=${VC_WORKER_HOSTS%%,*}", Some((Face::Modelarts, "VC_WORKER_HOSTS"))),
            ("bash /home/work/run_train.sh x", Some((Face::Modelarts, "/home/work/run_train.sh"))),
            ("torchrun --nnodes=$WORLD_SIZE a", Some((Face::Dlc, "WORLD_SIZE for the number of nodes"))),
            (
                "torchrun --nnodes \"${WORLD_SIZE:-1}\" a",
                Some((Face::Dlc, "WORLD_SIZE for the number of nodes")),
            ),
            ("torchrun --node_rank=${RANK} a", Some((Face::Dlc, "RANK for the number of a node"))),
            ("torchrun --node_rank=$RANK_OF_MINE a", None),
            ("torchrun --nnodes=$NNODES --node_rank=$NODE_RANK a", None),
            ("# DLWS_ROLE_NAME", None),
            ("MA_WINDOW=3 XDLS_A /job/hostfile", None),
        ] {
            let found = look(text);
            let found = found.first().map(|(face, name)| (*face, name.as_str()));
            assert_eq!(found, expected, "{text}");
        }
    }
}
