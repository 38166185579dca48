// CoreDNS with the one part of it that a test's cluster needs: whole, it is compiled from the clients of every cloud.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func init() {
	dnsserver.Directives = []string{"errors", "kubernetes"}
}

func main() {
	coremain.Run()
}
