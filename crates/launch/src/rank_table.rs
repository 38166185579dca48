//! HCCL rank tables: which Ascend device of which server has which rank, in the four forms that Huawei's libraries read.
//!
//! All values are strings, and ranks are consecutive in the order of servers. HCCL knows a server once and refuses ranks that go to and fro
//! between servers, so members that share a host are one server here; whoever tells a process its rank asks [`ranks`].
//!
//! A device without an address of its own has an empty one: Huawei allows that within one server, and older readers want
//! the field. Tables are always `completed`: they are written when every address is known.

use std::cell::OnceCell;

use muster_model::node::{Device, Vendor};
use serde::Serialize;

use crate::Gang;

const COMPLETED: &str = "completed";

/// Which of the forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// See [`a`].
    A,
    /// See [`b`].
    B,
    /// See [`c`].
    C,
    /// See [`d`].
    D,
}

/// The tables of a gang, each written once however many members read it: they are long, and every member is in them.
#[derive(Debug, Default)]
pub(crate) struct Tables([OnceCell<String>; 4]);

impl Tables {
    pub(crate) fn get(&self, gang: &Gang, form: Form) -> &str {
        self.0[form as usize].get_or_init(|| match form {
            Form::A => a(gang),
            Form::B => b(gang),
            Form::C => c(gang),
            Form::D => d(gang),
        })
    }
}

/// Whether there is a table to write: every member has Ascend devices.
pub fn applies(gang: &Gang) -> bool {
    gang.members.iter().all(|member| member.devices.iter().any(|(_, device)| device.vendor == Vendor::Ascend))
}

/// How many ranks there are.
pub fn size(gang: &Gang) -> usize {
    servers(gang).iter().map(|server| server.devices.len()).sum()
}

/// The ranks of a member's devices, in the order of the devices.
pub fn ranks(gang: &Gang, member: usize) -> Vec<u32> {
    let all = servers(gang);
    all.iter()
        .flat_map(|server| &server.devices)
        .filter(|seat| seat.member == member)
        .map(|seat| seat.rank)
        .collect()
}

/// The form of MindSpore up to 0.5, one entry per device: `hccl_ms.json`, `MINDSPORE_HCCL_CONFIG_PATH`.
pub fn a(gang: &Gang) -> String {
    let servers = servers(gang);
    let seats = || servers.iter().flat_map(|server| server.devices.iter().map(move |seat| (server, seat)));
    let count = seats().count().to_string();
    let mut ports: Vec<u32> = seats().map(|(_, seat)| seat.number).collect();
    ports.sort_unstable();
    ports.dedup();
    let instance_list = seats().map(|(server, seat)| InstanceA {
        devices: [Place::of(seat)],
        rank_id: seat.rank.to_string(),
        server_id: &server.id,
    });
    text(&A {
        board_id: "0x0020",
        chip_info: "910",
        deploy_mode: "lab",
        group_count: "1",
        group_list: [GroupA {
            device_num: &count,
            server_num: servers.len().to_string(),
            group_name: "",
            instance_count: &count,
            instance_list: instance_list.collect(),
        }],
        para_plane_nic_location: "device",
        para_plane_nic_name: ports.iter().map(|number| format!("eth{number}")).collect(),
        para_plane_nic_num: ports.len().to_string(),
        status: COMPLETED,
    })
}

/// The form of TensorFlow and of ModelArts ("0.1"), one entry per server; a device's rank is its place: `hccl_tf.json`,
/// `jobstart_hccl.json`.
pub fn b(gang: &Gang) -> String {
    let servers = servers(gang);
    let instance_list = servers.iter().map(|server| InstanceB {
        pod_name: pod(gang, server.first),
        server_id: &server.id,
        devices: server.devices.iter().map(Place::of).collect(),
    });
    text(&B {
        status: COMPLETED,
        group_count: "1",
        group_list: [GroupB {
            group_name: "hccl_world_group",
            device_count: servers.iter().map(|server| server.devices.len()).sum::<usize>().to_string(),
            instance_count: servers.len().to_string(),
            instance_list: instance_list.collect(),
        }],
    })
}

/// The form of MindSpore since 1.0 and of CANN ("1.0"): `RANK_TABLE_FILE`.
pub fn c(gang: &Gang) -> String {
    standard(gang, "1.0", |_| ServerNames { host_nic_ip: Some("reserve"), host_ip: None })
}

/// The form of servers that are parts of a super pod ("1.2"). Which device of the pod a device is, nodes do not tell; without
/// that HCCL takes the servers for ordinary ones.
pub fn d(gang: &Gang) -> String {
    standard(gang, "1.2", |id| ServerNames { host_nic_ip: None, host_ip: Some(id) })
}

/// The name of a member as a pod of the platforms that have them.
pub(crate) fn pod(gang: &Gang, member: usize) -> String {
    format!("{}-worker-{member}", gang.job_name)
}

fn standard<'a>(
    gang: &'a Gang,
    version: &'a str,
    names: impl for<'b> Fn(&'b str) -> ServerNames<'b>,
) -> String {
    let servers = servers(gang);
    let server_list = servers.iter().map(|server| ServerC {
        server_id: &server.id,
        names: names(&server.id),
        device: server
            .devices
            .iter()
            .map(|seat| DeviceC { place: Place::of(seat), rank_id: seat.rank.to_string() })
            .collect(),
    });
    text(&C {
        version,
        server_count: servers.len().to_string(),
        server_list: server_list.collect(),
        status: COMPLETED,
    })
}

/// A server and its devices, in the order of their ranks.
struct Server<'a> {
    id: String,
    /// The first member on it.
    first: usize,
    devices: Vec<Seat<'a>>,
}

struct Seat<'a> {
    member: usize,
    number: u32,
    device: &'a Device,
    rank: u32,
}

fn servers<'a>(gang: &'a Gang) -> Vec<Server<'a>> {
    let mut servers: Vec<Server> = Vec::new();
    for (first, member) in gang.members.iter().enumerate() {
        let id = member.ip().to_string();
        let at = servers.iter().position(|server| server.id == id).unwrap_or_else(|| {
            servers.push(Server { id, first, devices: Vec::new() });
            servers.len() - 1
        });
        let mut seats: Vec<Seat> = member
            .devices
            .iter()
            .filter(|(_, device)| device.vendor == Vendor::Ascend)
            .map(|(number, device)| Seat { member: first, number: *number, device, rank: 0 })
            .collect();
        seats.sort_by_key(|seat| seat.number);
        servers[at].devices.extend(seats);
    }
    for (rank, seat) in (0..).zip(servers.iter_mut().flat_map(|server| &mut server.devices)) {
        seat.rank = rank;
    }
    servers
}

fn text(table: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(table).expect("a table of strings is JSON");
    text.push('\n');
    text
}

#[derive(Serialize)]
struct Place {
    device_id: String,
    device_ip: String,
}

impl Place {
    fn of(seat: &Seat) -> Self {
        Self {
            device_id: seat.number.to_string(),
            device_ip: seat.device.ip.map(|ip| ip.to_string()).unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
struct A<'a> {
    board_id: &'a str,
    chip_info: &'a str,
    deploy_mode: &'a str,
    group_count: &'a str,
    group_list: [GroupA<'a>; 1],
    para_plane_nic_location: &'a str,
    para_plane_nic_name: Vec<String>,
    para_plane_nic_num: String,
    status: &'a str,
}

#[derive(Serialize)]
struct GroupA<'a> {
    device_num: &'a str,
    server_num: String,
    group_name: &'a str,
    instance_count: &'a str,
    instance_list: Vec<InstanceA<'a>>,
}

#[derive(Serialize)]
struct InstanceA<'a> {
    devices: [Place; 1],
    rank_id: String,
    server_id: &'a str,
}

#[derive(Serialize)]
struct B<'a> {
    status: &'a str,
    group_count: &'a str,
    group_list: [GroupB<'a>; 1],
}

#[derive(Serialize)]
struct GroupB<'a> {
    group_name: &'a str,
    device_count: String,
    instance_count: String,
    instance_list: Vec<InstanceB<'a>>,
}

#[derive(Serialize)]
struct InstanceB<'a> {
    pod_name: String,
    server_id: &'a str,
    devices: Vec<Place>,
}

#[derive(Serialize)]
struct C<'a> {
    version: &'a str,
    server_count: String,
    server_list: Vec<ServerC<'a>>,
    status: &'a str,
}

#[derive(Serialize)]
struct ServerC<'a> {
    server_id: &'a str,
    #[serde(flatten)]
    names: ServerNames<'a>,
    device: Vec<DeviceC>,
}

#[derive(Serialize)]
struct ServerNames<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    host_nic_ip: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_ip: Option<&'a str>,
}

#[derive(Serialize)]
struct DeviceC {
    #[serde(flatten)]
    place: Place,
    rank_id: String,
}

#[cfg(test)]
mod tests;
