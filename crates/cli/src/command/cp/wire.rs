//! A connection to a task for code that waits: on a thread of its own, while the runtime's thread moves the bytes.

use std::future::Future;
use std::io::{self, Read, Write};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use muster_api::client::Line;
use muster_bundle::copy::Wire;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::runtime::Handle;

/// Above the frames of a copy, so that one read takes as much as there is.
const BUFFER: usize = 512 << 10;

pub(super) struct LineWire {
    reader: BufReader<ReadHalf<Line>>,
    writer: WriteHalf<Line>,
    runtime: Handle,
}

impl LineWire {
    pub fn new(line: Line, runtime: Handle) -> Self {
        let (reader, writer) = tokio::io::split(line);
        LineWire { reader: BufReader::with_capacity(BUFFER, reader), writer, runtime }
    }
}

impl Read for LineWire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.runtime.block_on(self.reader.read(buffer))
    }
}

impl Write for LineWire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.runtime.block_on(self.writer.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.runtime.block_on(self.writer.flush())
    }
}

impl Wire for LineWire {
    fn is_ready(&mut self) -> io::Result<bool> {
        // The library counts on being inside a runtime.
        let _inside = self.runtime.enter();
        match pin!(self.reader.fill_buf()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read.map(|_| true),
            Poll::Pending => Ok(false),
        }
    }
}
