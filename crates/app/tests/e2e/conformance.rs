//! The suite that every engine passes, on the local engine with the real binary.

use async_trait::async_trait;
use muster_engine::conformance::{self, Home as Suite};
use muster_engine::local::{Local, Options};
use muster_model::NodeId;
use muster_testkit::{is_alive, kill, wait_for};
use tokio::net::UnixListener;

use crate::gate::{Gate, TOKEN};
use crate::home;

#[async_trait]
impl Suite for Gate {
    fn token(&self, _: &NodeId) -> String {
        TOKEN.into()
    }

    async fn next_hello(&mut self, node: &NodeId) -> u32 {
        loop {
            let hello = self.hellos.recv().await.expect("the gate is open");
            assert_eq!(hello.node, *node);
            // One that was killed may have dialled twice before.
            if is_alive(hello.pid) {
                return hello.pid;
            }
        }
    }

    async fn kill_agent(&mut self, _: &NodeId, pid: u32) {
        kill(pid);
    }
}

#[test]
fn the_local_engine_conforms() {
    let home = home();
    std::fs::create_dir(home.path()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut gate = Gate::open(UnixListener::bind(home.path().join("server.sock")).unwrap());
        let arguments = ["agent", "--home", home.path().to_str().unwrap()].map(str::to_owned).to_vec();
        let exe = env!("CARGO_BIN_EXE_muster").into();
        let engine = Local::new(Options { dir: home.path().join("node"), exe, arguments, binary: || None });
        conformance::run(&engine, &mut gate).await;
    });
    wait_for("the agent's process to go", || home.processes().is_empty());
}
