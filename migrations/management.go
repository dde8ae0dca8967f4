package migrations

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fleetd/fault"
)

// Management is the broker's management API, of RabbitMQ or LavinMQ.
type Management struct {
	Base           string // as http://host:15672
	VHost          string
	User, Password string
	Secure         *tls.Config // for https; nil: the system's authorities
}

const (
	managementWait  = 30 * time.Second
	managementBytes = 64 << 20
)

// Queues are the names of the old daemon's queues: their names and whether they
// are durable and without arguments tell them.
func (m Management) Queues(ctx context.Context) ([]string, error) {
	var all []struct {
		Name      string         `json:"name"`
		Durable   bool           `json:"durable"`
		Arguments map[string]any `json:"arguments"`
	}
	if _, err := m.ask(ctx, "", &all); err != nil {
		return nil, err
	}
	var found []string
	for _, q := range all {
		delete(q.Arguments, "x-queue-type") // RabbitMQ 4 may add its default
		if _, ok := PaneOf(q.Name); ok && q.Durable && len(q.Arguments) == 0 {
			found = append(found, q.Name)
		}
	}
	return found, nil
}

// Held is how many messages of queue somebody took and neither acked nor gave
// back, when the broker counted last; RabbitMQ does so every 5 s. Not known: it
// has not counted yet, or does not.
func (m Management) Held(ctx context.Context, queue string) (held int, known bool, err error) {
	var q struct {
		Rabbit *int `json:"messages_unacknowledged"`
		Lavin  *int `json:"unacked"`
	}
	there, err := m.ask(ctx, "/"+url.PathEscape(queue), &q)
	if err != nil || !there { // another node's API may not know it
		return 0, false, err
	}
	if n := cmp.Or(q.Rabbit, q.Lavin); n != nil {
		return *n, true, nil
	}
	return 0, false, nil
}

// ask gets what is under the path of the vhost's queues; false: it is not there.
func (m Management) ask(ctx context.Context, path string, v any) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, managementWait)
	defer cancel()
	at, err := url.Parse(m.Base)
	if err != nil || at.Host == "" || at.User != nil || at.Scheme != "http" && at.Scheme != "https" {
		return false, fault.New(fault.BadRequest, "--management takes the URL of the broker's management API, as http://broker:15672")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(at.String(), "/")+"/api/queues/"+url.PathEscape(m.VHost)+path, nil)
	if err != nil {
		return false, fault.New(fault.BadRequest, "--management %s is no URL that can be asked", at.Redacted())
	}
	req.SetBasicAuth(m.User, m.Password)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: m.Secure, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if notTrusted(err) {
		return false, fault.Wrap(err, fault.BrokerRefused, "the certificate of the management API is not trusted; set broker.tls.ca to the PEM file of its authority, or name the queues with --queue")
	}
	if err != nil {
		return false, fault.Wrap(err, fault.BrokerDown, "the management API does not answer; see its URL, or name the queues with --queue")
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return false, fault.New(fault.BrokerRefused, "the management API does not take the login %s (RabbitMQ: it needs the tag management); ask with another, as http://USER@broker:15672, or name the queues with --queue", m.User)
	case http.StatusNotFound:
		if path != "" {
			return false, nil
		}
		fallthrough
	default:
		return false, fault.New(fault.BrokerRefused, "the management API answers %s; see its URL and the vhost %s, or name the queues with --queue", res.Status, m.VHost)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, managementBytes)).Decode(v); err != nil {
		return false, fault.Wrap(err, fault.BrokerRefused, "the answer of the management API cannot be read; see its URL, or name the queues with --queue")
	}
	return true, nil
}

func notTrusted(err error) bool {
	_, is := errors.AsType[*tls.CertificateVerificationError](err)
	return is
}
