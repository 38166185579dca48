use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex as Shared;

use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

fn kubeconfig(server: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
         clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
         contexts:\n- {{name: lab, context: {{cluster: c, user: u, namespace: ml}}}}\n- {{name: prod, context: {{cluster: gone, user: u}}}}\n\
         users:\n- name: u\n  user: {user}\n"
    )
}

fn settings(dir: &Path, text: &str) -> Settings {
    let path = dir.join("config");
    std::fs::write(&path, text).unwrap();
    Settings {
        dir: dir.to_owned(),
        socket: dir.join("gate.sock"),
        exe: "/proc/self/exe".into(),
        kubeconfig: Some(path),
        cluster: Cluster::default(),
        contexts: BTreeMap::new(),
    }
}

/// An API server that has one answer, and remembers what it was shown.
struct Api1 {
    url: String,
    shown: Arc<Shared<Vec<String>>>,
    _work: JoinSet<()>,
}

impl Api1 {
    async fn start(answer: impl Fn(&str) -> (u16, &'static str) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shown = Arc::new(Shared::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&shown), Arc::new(answer));
        let mut work = JoinSet::new();
        work.spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let mut text = vec![0; 16384];
                let read = stream.read(&mut text).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&text[..read]).into_owned();
                let header = text.lines().find(|line| line.to_ascii_lowercase().starts_with("authorization: "));
                let token = header.and_then(|line| line.split(' ').next_back()).unwrap_or("nothing").to_owned();
                let (code, body) = answer(&token);
                seen.lock().unwrap().push(token);
                let said = format!(
                    "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(said.as_bytes()).await;
            }
        });
        Self { url, shown, _work: work }
    }

    fn shown(&self) -> Vec<String> {
        self.shown.lock().unwrap().clone()
    }
}

const EMPTY: &str = r#"{"kind":"JobList","apiVersion":"batch/v1","metadata":{},"items":[]}"#;
const UNAUTHORIZED: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;

async fn list(connection: &Connection) -> Result<usize, Failure> {
    let api: Api<Job> = Api::namespaced(connection.client.clone(), &connection.namespace);
    connection.call(api.list(&Default::default())).await.map(|list| list.items.len())
}

/// A credential plugin that counts how often it is asked: each time another token, of which each lasts so long.
fn plugin_script(dir: &Path, lasts: &str) -> PathBuf {
    let path = dir.join("plugin");
    let mut file = std::fs::File::create(&path).unwrap();
    let counter = dir.join("asked");
    let text = format!(
        "#!/bin/sh\necho x >> {counter}\nn=$(wc -l < {counter})\n\
         until=$(date -u -d '{lasts}' +%Y-%m-%dT%H:%M:%SZ)\n\
         echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{{\"token\":\"token-'$n'\",\"expirationTimestamp\":\"'$until'\"}}}}'\n",
        counter = counter.display()
    );
    file.write_all(text.as_bytes()).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn exec(path: &Path) -> String {
    format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: \"{}\", interactiveMode: IfAvailable}}}}",
        path.display()
    )
}

#[tokio::test]
async fn a_credential_plugin_is_asked_once_and_again_when_its_token_runs_out() {
    let dir = tempfile::tempdir().unwrap();
    let api = Api1::start(|_| (200, EMPTY)).await;
    for (lasts, is_kept) in [("now + 1 hour", true), ("now + 10 seconds", false)] {
        let config = kubeconfig(&api.url, &exec(&plugin_script(dir.path(), lasts)));
        let connections = Connections::new(Arc::new(settings(dir.path(), &config)));
        let connection = connections.get("").await.unwrap();
        assert_eq!((connection.namespace.as_str(), list(&connection).await.unwrap()), ("ml", 0));
        list(&connections.get("").await.unwrap()).await.unwrap();
        let shown = api.shown();
        let [.., one, other] = shown.as_slice() else { panic!("two calls: {shown:?}") };
        assert_eq!(one == other, is_kept, "{lasts}: {shown:?}");
    }
}

#[tokio::test]
async fn who_is_turned_away_reads_the_kubeconfig_again() {
    let dir = tempfile::tempdir().unwrap();
    let api = Api1::start(|token| if token == "new" { (200, EMPTY) } else { (401, UNAUTHORIZED) }).await;
    let connections = Connections::new(Arc::new(settings(dir.path(), &kubeconfig(&api.url, "{token: old}"))));
    let failure = list(&connections.get("").await.unwrap()).await.unwrap_err();
    assert_eq!(failure.status().map(|status| status.code), Some(401));
    settings(dir.path(), &kubeconfig(&api.url, "{token: new}"));
    list(&connections.get("").await.unwrap()).await.unwrap();
    assert_eq!(api.shown(), ["old", "new"]);
}

#[tokio::test]
async fn a_server_that_says_nothing_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = Connections::new(Arc::new(settings(dir.path(), &kubeconfig(&url, "{token: t}"))));
    let deadline = Duration::from_millis(100);
    let connection = Connection { deadline, ..connections.get("").await.unwrap() };
    let failure = list(&connection).await.unwrap_err();
    assert!(matches!(failure, Failure::Silence), "{failure:?}");
    let error = failure.into_error(&connection);
    assert_eq!(error.what, format!("the API server {url} has said nothing in time"));
    drop(listener);
    let error = list(&connection).await.unwrap_err().into_error(&connection);
    assert!(
        error.what.starts_with(&format!("the API server {url} cannot be reached: Connection re")),
        "{}",
        error.what
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_kubeconfig_is_said_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let config = |text: &str| settings(dir.path(), text);
    let why = async |settings: Settings, place: &str| {
        let error = Connections::new(Arc::new(settings)).get(place).await.unwrap_err();
        assert_eq!(error.class, Class::Retryable, "somebody may mend it");
        error.what.replace(&dir.path().display().to_string(), "DIR")
    };
    let fine = kubeconfig("http://127.0.0.1:1", "{token: t}");
    assert_eq!(
        why(config(&fine), "prd").await,
        "context `prd` is not in DIR/config; there are: lab, prod; did you mean `prod`?"
    );
    assert_eq!(
        why(config(&fine), "prod").await,
        "cluster `gone`, which the context names, is not in DIR/config"
    );
    assert_eq!(
        why(config("apiVersion: v1\nkind: Config\n"), "").await,
        "DIR/config has no current context; it has none; name one with --on k8s/CONTEXT or k8s.context"
    );
    let missing = Settings { kubeconfig: Some(dir.path().join("nowhere")), ..config(&fine) };
    assert_eq!(why(missing, "").await, "DIR/nowhere cannot be read: No such file or directory (os error 2)");
    let asks = fine.replace("{token: t}", "{exec: {command: login, interactiveMode: Always}}");
    assert_eq!(
        why(config(&asks), "").await,
        "the credential plugin `login` of user `u` asks at a terminal, which a server has none of; use one that does not, or a \
         token"
    );
    let absent = fine.replace("{token: t}", "{exec: {command: /nowhere/plugin}}");
    assert_eq!(
        why(config(&absent), "").await,
        "the credential plugin of the kubeconfig cannot be run: No such file or directory (os error 2)"
    );
    let fails =
        fine.replace("{token: t}", "{exec: {command: sh, args: [-c, 'echo log in first >&2; exit 3']}}");
    assert_eq!(why(config(&fails), "").await, "the credential plugin of the kubeconfig failed: log in first");
}

#[test]
fn a_place_is_a_context_unless_the_configuration_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(dir.path(), "");
    settings.cluster =
        Cluster { context: Some("lab".into()), namespace: Some("ml".into()), ..Cluster::default() };
    let own = Cluster { context: None, namespace: Some("vision".into()), ..Cluster::default() };
    let renamed = Cluster { context: Some("arn:aws:eks/prod".into()), ..own.clone() };
    settings.contexts = BTreeMap::from([("plain".into(), own), ("prod".into(), renamed)]);
    let of = |place: &str| {
        let cluster = settings.cluster(place);
        (cluster.context.unwrap(), cluster.namespace.unwrap())
    };
    assert_eq!(of(""), ("lab".into(), "ml".into()));
    assert_eq!(of("plain"), ("plain".into(), "vision".into()));
    assert_eq!(of("prod"), ("arn:aws:eks/prod".into(), "vision".into()));
    assert_eq!(of("other"), ("other".into(), "ml".into()));
}

#[test]
fn several_files_are_one_and_the_first_word_counts() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let one =
        file("one", "current-context: a\ncontexts: [{name: a, context: {cluster: c, namespace: first}}]");
    let two = file(
        "two",
        "current-context: b\ncontexts: [{name: a, context: {cluster: d}}, {name: b, context: {cluster: c}}]",
    );
    let merged = read(&[one, dir.path().join("missing"), two]).unwrap();
    let names: Vec<&str> = merged.contexts.iter().map(|context| context.name.as_str()).collect();
    assert_eq!((merged.current_context.as_deref(), names), (Some("a"), vec!["a", "b"]));
    let first = merged.contexts[0].context.as_ref().unwrap();
    assert_eq!(first.namespace.as_deref(), Some("first"));
}

#[test]
fn no_proxy_is_asked_about_the_api_server() {
    let cases = [
        ("https://10.0.0.1:6443/", "10.0.0.0/8", true),
        ("https://10.0.0.1:6443/", "192.168.0.0/16,10.0.0.1", true),
        ("https://11.0.0.1/", "10.0.0.0/8", false),
        ("https://api.lab.example:6443", ".lab.example", true),
        ("https://api.lab.example:6443", "lab.example", true),
        ("https://apilab.example:6443", "lab.example", false),
        ("https://api.lab.example", "*.example", true),
        ("https://api.lab.example", "*", true),
        ("https://[fd00::1]:6443", "fd00::/8", true),
        ("https://127.0.0.1:6443", "", true),
        ("https://api.example", "", false),
    ];
    for (url, exceptions, expected) in cases {
        assert_eq!(is_excepted(url, exceptions), expected, "{url} {exceptions}");
    }
}
