//! `muster init`: a job file that runs as it is, from what a directory has.

use std::fs::{self, File};

use crate::{home, home_with};

#[test]
fn what_is_written_runs_as_it_is() {
    let home = home();
    home.write("train.py", "import torch.distributed as dist\n");
    home.write("main.sh", "echo hello\n");
    let done = home.run(["init"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "./muster.yaml\n"), "{}", done.err());
    let text = fs::read_to_string(home.work().join("muster.yaml")).unwrap();
    assert!(text.contains("command: [python, train.py]") && text.contains("#framework: pytorch"), "{text}");
    fs::remove_file(home.work().join("train.py")).unwrap();
    home.ok(["init", "--force"]);
    let done = home.run(["run", "muster.yaml"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "hello\n"), "{}", done.err());
}

#[test]
fn every_kind_of_directory_gets_a_file_that_is_taken() {
    let home = home_with("[local]\ndevices = [\"H100:8\"]\n");
    let kinds: [(&str, &[(&str, &str)]); 8] = [
        ("empty", &[]),
        ("pip", &[("train.py", "import torch\n"), ("requirements.txt", "torch\n")]),
        ("project", &[("main.py", "import jax\n"), ("pyproject.toml", "[project]\n")]),
        ("conda", &[("main.py", ""), ("environment.yml", "name: x\n")]),
        ("notebook", &[("a b.ipynb", "{}")]),
        (
            "deep",
            &[("run.sh", "deepspeed x.py\n"), ("x.py", "import deepspeed\n"), ("Dockerfile", "FROM x\n")],
        ),
        ("odd", &[("it's \"odd\": #1.py", "if __name__ == '__main__': pass\n")]),
        ("Größe 3", &[("train.py", "import mindspore\n")]),
    ];
    for (folder, files) in kinds {
        fs::create_dir(home.work().join(folder)).unwrap();
        for (name, text) in files {
            home.write(&format!("{folder}/{name}"), text);
        }
        home.ok(["init", folder]);
        let done = home.run(["run", "--dry-run", "-f", &format!("{folder}/muster.yaml")]);
        assert_eq!(
            done.code(),
            0,
            "{folder}: {}{}",
            done.err(),
            fs::read_to_string(home.work().join(folder).join("muster.yaml")).unwrap()
        );
    }
}

#[test]
fn nothing_is_written_over_and_large_files_are_named() {
    let home = home();
    home.write("muster.yaml", "command: mine\n");
    let done = home.run(["init"]);
    assert_eq!(done.code(), 2);
    assert!(
        done.err().contains("error[job_file_exists]") && done.err().contains("--force"),
        "{}",
        done.err()
    );
    assert_eq!(fs::read_to_string(home.work().join("muster.yaml")).unwrap(), "command: mine\n");
    assert_eq!(home.run(["init", "nowhere"]).code(), 2);

    fs::create_dir(home.work().join("data")).unwrap();
    File::create(home.work().join("data/set.bin")).unwrap().set_len(200 << 20).unwrap();
    let done = home.run(["init", "--force"]);
    assert!(done.err().contains("data/ (200 MB)") && done.err().contains(".musterignore"), "{}", done.err());
    let text = fs::read_to_string(home.work().join("muster.yaml")).unwrap();
    assert!(text.contains("#   data/  (200 MB)"), "{text}");
    let json = home.json(["init", "--force", "--json"]);
    assert_eq!(json["large"][0]["path"], "data/");
    assert!(!home.path().exists(), "it starts no server");
}
