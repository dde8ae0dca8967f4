package fabric

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"regexp"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/migrations"
)

// OldQueues are the queues of the older single-host daemon, and the inboxes to
// which their mail is moved (design §12). It has connections of its own and is
// for one goroutine: a move is one step after the other.
type OldQueues struct {
	f         *Fabric // its names, its login and the form of its messages; never run
	key       ed25519.PrivateKey
	con, out  *connection
	take      *amqp.Channel // holds what was taken; nil until the first
	takeEnd   chan *amqp.Error
	queueGone bool   // take was closed because the queue is no more
	lock      string // the exclusive queue that is held; "": none
	pub       *amqp.Channel
	returns   chan amqp.Return
	closes    chan *amqp.Error
}

// DialOldQueues connects to the broker as this gateway. BROKER_REFUSED: it does
// not take the login. BROKER_DOWN: it cannot be reached.
func DialOldQueues(ctx context.Context, cfg Config, key ed25519.PrivateKey) (*OldQueues, error) {
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, DefaultHeartbeat)
	d, err := newDialer(cfg)
	if err != nil {
		return nil, err
	}
	o := &OldQueues{key: key, f: &Fabric{cfg: cfg, dialer: d, names: Names{Prefix: cfg.Prefix}, deps: Deps{Now: time.Now}, lavin: lavin}}
	if o.con, err = d.dial(ctx, "bridged "+cfg.Host+" migrate take"); err != nil {
		return nil, dialFault(err)
	}
	if o.out, err = d.dial(ctx, "bridged "+cfg.Host+" migrate publish"); err != nil {
		o.con.end()
		return nil, dialFault(err)
	}
	if err := o.openPublisher(); err != nil {
		o.Close()
		return nil, lost(err)
	}
	return o, nil
}

func dialFault(err error) error {
	if isCode(err, amqp.AccessRefused, amqp.NotAllowed) {
		return fault.Wrap(err, fault.BrokerRefused, "the broker does not take the login of broker.uri, or not for that vhost; nothing was changed. Correct broker.uri")
	}
	return fault.Wrap(err, fault.BrokerDown, "the broker cannot be reached; nothing was changed. See broker.uri, and run this again when it is up")
}

func lost(err error) error {
	return fault.Wrap(err, fault.BrokerDown, "the connection to the broker broke; no mail was lost by it. Run this again, it goes on where it was")
}

// broke says why a call on a connection ended: cutAfter ends it where the user
// does.
func broke(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return interrupted(ctx.Err())
	}
	return lost(err)
}

func interrupted(err error) error {
	return fault.Wrap(err, fault.Unconfirmed, "the migration was interrupted; run it again, it goes on where it was")
}

func (o *OldQueues) openPublisher() (err error) {
	if o.pub, err = o.out.Channel(); err != nil {
		return err
	}
	o.returns = o.pub.NotifyReturn(make(chan amqp.Return, 1)) // one message is under way at a time
	o.closes = o.pub.NotifyClose(make(chan *amqp.Error, 1))
	return o.pub.Confirm(false)
}

// Close ends the connections; what was taken and not acked goes back.
func (o *OldQueues) Close() {
	o.con.end()
	o.out.end()
}

// Names are the names of the exchanges and queues that letters go to.
func (o *OldQueues) Names() Names { return o.f.names }

// Look says what lies in queue; migrations.ErrNoQueue.
func (o *OldQueues) Look(ctx context.Context, queue string) (migrations.Queue, error) {
	if err := ctx.Err(); err != nil {
		return migrations.Queue{}, interrupted(err)
	}
	defer o.cutAfter(ctx, o.con)()
	var q amqp.Queue
	err := aside(o.con, func(ch *amqp.Channel) (err error) {
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	switch {
	case isCode(err, amqp.NotFound):
		return migrations.Queue{}, notThere(err)
	case isCode(err, amqp.ResourceLocked):
		return migrations.Queue{}, fault.Wrap(err, fault.NotAllowed, "%s belongs to a connection of somebody else alone, so it is no queue of the old daemon; leave it out with --skip %s", queue, queue)
	case isCode(err, amqp.AccessRefused):
		return migrations.Queue{}, fault.Wrap(err, fault.NotAllowed, "the broker does not let this login look at %s; give it the right to, or leave the queue out with --skip %s", queue, queue)
	case err != nil:
		return migrations.Queue{}, broke(ctx, err)
	}
	return migrations.Queue{Ready: q.Messages, Consumers: q.Consumers}, nil
}

// unreachable matches what RabbitMQ says, with the code of a queue that is not
// there, of one whose node of a cluster is down or does not answer.
var unreachable = regexp.MustCompile(`down or inaccessible|due to timeout`)

// notThere is what a 404 on a queue means.
func notThere(err error) error {
	if unreachable.MatchString(err.Error()) {
		return fault.Wrap(err, fault.BrokerDown, "the node of the cluster that has the queue cannot be reached (%s); run this again when it is up", words(err))
	}
	return migrations.ErrNoQueue
}

// replicated matches the broker's word on a queue that is none of the classic
// type; without it the queue may be of any (broker fact §2).
var replicated = regexp.MustCompile(`current is '(quorum|stream)'`)

// Replicated reports whether queue is a quorum queue or a stream: these give back
// in another order what was taken, or nothing. migrations.ErrNoQueue.
func (o *OldQueues) Replicated(ctx context.Context, queue string) (bool, error) {
	if _, err := o.Look(ctx, queue); err != nil { // it would be made
		return false, err
	}
	defer o.cutAfter(ctx, o.con)()
	err := aside(o.con, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{argType: amqp.QueueTypeClassic}) // it is there: that changes nothing
		return err
	})
	switch {
	case isCode(err, amqp.PreconditionFailed):
		return argumentOf(err) == argType && replicated.MatchString(err.Error()), nil
	case isCode(err, amqp.AccessRefused, amqp.ResourceLocked): // nobody can say
		return false, nil
	case err != nil:
		return false, broke(ctx, err)
	}
	return false, nil
}

// cutAfter has the end of ctx break off calls that a broker does not answer.
// One that is being answered is not: what was acked before is counted over the
// same connection.
func (o *OldQueues) cutAfter(ctx context.Context, c *connection) func() {
	answered := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		late := time.NewTimer(closeWait)
		defer late.Stop()
		select {
		case <-answered:
		case <-late.C:
			_ = c.raw.Close()
		}
	})
	return func() { stop(); close(answered) }
}

// lockSuffix makes the name of a queue that locks another. It is exclusive to
// the connection that takes: whoever else may declare it knows that the broker
// gives back what that one held (broker facts §2, §3).
const lockSuffix = ".migrating"

// Lock declares the queue that locks queue.
func (o *OldQueues) Lock(ctx context.Context, queue string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, interrupted(err)
	}
	defer o.cutAfter(ctx, o.con)()
	name := queue + lockSuffix
	err := aside(o.con, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, false, false, true, false, nil)
		return err
	})
	switch {
	case isCode(err, amqp.ResourceLocked, amqp.PreconditionFailed):
		return false, o.lockRefused(ctx, name, err)
	case isCode(err, amqp.AccessRefused):
		return false, fault.Wrap(err, fault.NotAllowed, "the broker does not let this gateway's login make %s, by which no two migrations move %s at once; give it the right to, then run this again", name, queue)
	case err != nil:
		return false, broke(ctx, err)
	}
	o.lock = name
	return true, nil
}

// lockRefused says why the queue name could not be made; nil: another connection
// has it, or had until now. RabbitMQ says 405 of a queue that is exclusive to
// another connection, and of one that is exclusive to none.
func (o *OldQueues) lockRefused(ctx context.Context, name string, err error) error {
	_, look := o.Look(ctx, name)
	switch {
	case look == nil:
		return fault.Wrap(err, fault.Conflict, "the queue %s is in the way: this makes one of that name for as long as it runs; delete it, then run this again", name)
	case isCode(err, amqp.PreconditionFailed):
		return fault.Wrap(err, fault.BrokerRefused, "the broker does not make the queue %s, which this needs for as long as it runs (%s); nothing was lost. Mend that, then run this again", name, words(err))
	case errors.Is(look, migrations.ErrNoQueue), fault.Is(look, fault.NotAllowed):
		return nil
	}
	return look
}

// words are what the broker says.
func words(err error) string {
	if e, ok := errors.AsType[*amqp.Error](err); ok {
		return e.Reason
	}
	return err.Error()
}

// Take takes the oldest message of queue.
func (o *OldQueues) Take(ctx context.Context, queue string) (migrations.Old, bool, error) {
	if err := ctx.Err(); err != nil {
		return migrations.Old{}, false, interrupted(err)
	}
	defer o.cutAfter(ctx, o.con)()
	if o.take == nil || o.queueGone {
		ch, err := o.con.Channel()
		if err != nil {
			return migrations.Old{}, false, broke(ctx, err)
		}
		o.take, o.queueGone = ch, false
		o.takeEnd = ch.NotifyClose(make(chan *amqp.Error, 1))
	}
	d, ok, err := o.take.Get(queue, false)
	switch {
	case isCode(err, amqp.NotFound):
		err = notThere(err)
		o.queueGone = errors.Is(err, migrations.ErrNoQueue)
		return migrations.Old{}, false, err
	case isCode(err, amqp.AccessRefused):
		o.take = nil
		return migrations.Old{}, false, fault.Wrap(err, fault.NotAllowed, "the broker does not let this gateway's login read %s; give it the right to, then run this again", queue)
	case err != nil:
		return migrations.Old{}, false, o.takeFault(ctx, err)
	}
	return migrations.Old{MessageID: d.MessageId, CorrelationID: d.CorrelationId, Expiration: d.Expiration, Body: d.Body, Tag: d.DeliveryTag}, ok, nil
}

// takeFault says why the channel that takes is closed.
func (o *OldQueues) takeFault(ctx context.Context, err error) error {
	if cause := endOf(o.takeEnd, err); cause != nil && cause.Code == amqp.PreconditionFailed {
		return fault.Wrap(cause, fault.BrokerRefused, "the broker took back what it had given (%s). Nothing was lost; run this again. If it says that an acknowledgement timed out, mail was held longer than its consumer_timeout allows (30 minutes, if nobody set another): run this from nearer to the broker, or with a longer consumer_timeout", words(cause))
	}
	return broke(ctx, err)
}

// endOf returns why the broker closed a channel on which a call failed with err;
// nil: it did not, or gave no word. The library lets calls fail before it tells
// why.
func endOf(closes <-chan *amqp.Error, err error) *amqp.Error {
	if !errors.Is(err, amqp.ErrClosed) {
		cause, _ := errors.AsType[*amqp.Error](err)
		return cause
	}
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case cause := <-closes:
		return cause
	case <-limit.C:
		return nil
	}
}

// Deliver signs l, publishes it to the inbox of its recipient, and waits for
// the broker's word. Of a message that the broker gave no word on nobody can
// say whether it arrived; the same letter again is known to its recipient.
func (o *OldQueues) Deliver(ctx context.Context, l migrations.Letter) error {
	env := &envelope.Envelope{
		Kind: envelope.Reply, MsgID: l.MsgID, TraceID: l.TraceID, From: l.From, To: l.To, Signer: o.f.cfg.Host,
		InReplyTo: l.InReplyTo, TS: l.TS, ExpiresAt: l.TS + envelope.MaxLife.Milliseconds(), Body: l.Body,
	}
	if err := env.Sign(o.key); err != nil {
		return err
	}
	m, err := o.f.message(envelope.LaneMail, env)
	if err != nil {
		return err
	}
	became, err := o.publish(ctx, m.exchange, m.key, m.Publishing)
	switch {
	case err != nil:
		return err
	case became == nacked:
		return o.full(ctx, l.To)
	case became == returned:
		return o.noInbox(l.To)
	}
	return nil
}

// Mark publishes a message with that id and text into queue, through the default
// exchange, and returns nil once the broker has stored it.
func (o *OldQueues) Mark(ctx context.Context, queue, id, text string) error {
	became, err := o.publish(ctx, "", queue, amqp.Publishing{
		MessageId: id, ContentType: "text/plain", DeliveryMode: amqp.Persistent, UserId: o.f.login(), Body: []byte(text),
	})
	switch {
	case fault.Is(err, fault.BrokerRefused):
		return fault.Wrap(err, fault.BrokerRefused, "the broker does not let this gateway's login put a mark into %s; it needs the right to write to the default exchange (amq.default; on LavinMQ the empty name). Run this again as an administrator", queue)
	case err != nil:
		return err
	case became == nacked:
		return fault.New(fault.BrokerRefused, "%s takes no mark: it is full by a policy. Lift the policy, then run this again", queue)
	case became == returned:
		return migrations.ErrNoQueue
	}
	return nil
}

// fate is what became of a publish.
type fate string

const (
	stored   fate = "stored"
	nacked   fate = "nacked"   // on a channel that lives: a refusal
	returned fate = "returned" // no queue is bound to the key
)

// oldWait bounds the wait for the broker's word on one old message. Nobody waits
// for that one alone, so a broker that is only busy is given time.
const oldWait = 30 * time.Second

// publish publishes one message and waits for the broker's word. With an error
// nobody can say whether it was stored.
func (o *OldQueues) publish(ctx context.Context, exchange, key string, p amqp.Publishing) (fate, error) {
	confirm, err := o.pub.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil {
		return "", o.publishFault(err)
	}
	limit := time.NewTimer(oldWait)
	defer limit.Stop()
	select {
	case <-confirm.Done():
	case <-limit.C:
		return "", fault.New(fault.BrokerDown, "the broker takes no messages at present (memory or disk are short, or it hangs); run this again when it does")
	case <-ctx.Done():
		return "", interrupted(ctx.Err())
	}
	switch {
	case !confirm.Acked() && o.pub.IsClosed():
		return "", o.publishFault(amqp.ErrClosed)
	case !confirm.Acked():
		return nacked, nil
	}
	select { // a return comes before its confirm (broker fact §4)
	case _, open := <-o.returns:
		if open { // else the channel ended right after its confirm
			return returned, nil
		}
	default:
	}
	return stored, nil
}

// publishFault says why the publish channel is closed.
func (o *OldQueues) publishFault(err error) error {
	cause := endOf(o.closes, err)
	switch {
	case cause == nil:
		return lost(err)
	case cause.Code == amqp.PreconditionFailed && o.f.lavin(o.out.Connection):
		return fault.Wrap(cause, fault.BrokerDown, "the broker takes no messages at present: its disk has too little room (LavinMQ, free_disk_min). Make room there, then run this again; it goes on where it was")
	case cause.Code == amqp.AccessRefused, cause.Code == amqp.NotFound, cause.Code == amqp.PreconditionFailed:
		return fault.Wrap(cause, fault.BrokerRefused, "the broker refused the message (code %d); check the rights of the gateway's login and that bridge.* exchanges exist, then run this again", cause.Code)
	}
	return lost(cause)
}

func (o *OldQueues) noInbox(gid string) error {
	return fault.New(fault.Unroutable, "the main's inbox %s is not on the broker, or not bound; see that the daemon runs and is connected (bridged roster), then run this again", o.f.names.Inbox(gid))
}

// CheckInbox returns nil if mail can be moved into the inbox of gid: it is there
// and the daemon can consume it. UNROUTABLE: it is not there. CONFLICT: it was
// made with other arguments than the daemon's.
func (o *OldQueues) CheckInbox(ctx context.Context, gid string) error {
	_, err := o.Look(ctx, o.f.names.Inbox(gid))
	if errors.Is(err, migrations.ErrNoQueue) {
		return o.noInbox(gid)
	}
	if err != nil {
		return err
	}
	defer o.cutAfter(ctx, o.con)()
	err = aside(o.con, o.f.names.inboxQueue(gid, InboxCap).declare) // it is there: that changes nothing
	switch {
	case isCode(err, amqp.PreconditionFailed):
		return fault.Wrap(err, fault.Conflict, "the main's inbox %s exists with another %s, so the daemon cannot read it; delete it when it is empty (the daemon makes it anew within seconds), then run this again", o.f.names.Inbox(gid), argumentOf(err))
	case isCode(err, amqp.AccessRefused): // this login may not declare it: nobody can say
		return nil
	case err != nil:
		return broke(ctx, err)
	}
	return nil
}

// full says that an inbox took no more: what a nack on a live channel means.
func (o *OldQueues) full(ctx context.Context, gid string) error {
	q, err := o.Look(ctx, o.f.names.Inbox(gid))
	if errors.Is(err, migrations.ErrNoQueue) { // it is not the old queue that is no more
		return o.noInbox(gid)
	}
	if err != nil {
		return err
	}
	return fault.New(fault.InboxFull, "the main's inbox takes no more: %d messages wait there. Have the main fetch some, then run this again; it goes on where it was", q.Ready)
}

// Ack removes what was taken under tag.
func (o *OldQueues) Ack(tag uint64) error {
	if o.queueGone {
		return nil // with all that it held
	}
	if err := o.take.Ack(tag, false); err != nil {
		return o.takeFault(context.Background(), err)
	}
	return nil
}

// GiveBack puts back into its place what was taken under last and before, and
// not acked: what is taken next is the oldest again.
func (o *OldQueues) GiveBack(ctx context.Context, last uint64) error {
	if o.take == nil || o.queueGone {
		return nil
	}
	if err := o.take.Nack(last, true, true); err != nil {
		return o.takeFault(ctx, err)
	}
	return o.Settled(ctx)
}

// Settled returns once the broker has dealt with every Ack before it: it
// answers what is asked on one channel in turn.
func (o *OldQueues) Settled(ctx context.Context) error {
	if o.take == nil || o.queueGone {
		return nil
	}
	defer o.cutAfter(ctx, o.con)()
	if err := o.take.Qos(0, 0, false); err != nil {
		return o.takeFault(ctx, err)
	}
	return nil
}

// Release gives back what was taken and not acked, and then the lock. On a
// connection that broke the broker does both.
func (o *OldQueues) Release() {
	if o.take != nil && !o.queueGone {
		_ = o.take.Close()
	}
	if o.lock != "" {
		_ = aside(o.con, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(o.lock, false, false, false)
			return err
		})
	}
	o.take, o.queueGone, o.lock = nil, false, ""
}

// Delete removes queue if it is empty and nobody consumes it. Of a quorum queue
// the broker does not take these conditions, so it stays.
func (o *OldQueues) Delete(ctx context.Context, queue string) (bool, error) {
	stays, err := o.Replicated(ctx, queue)
	if errors.Is(err, migrations.ErrNoQueue) {
		return false, nil
	}
	if err != nil || stays {
		return false, err
	}
	defer o.cutAfter(ctx, o.con)()
	err = aside(o.con, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(queue, true, true, false)
		return err
	})
	switch {
	case isCode(err, amqp.PreconditionFailed):
		return false, nil
	case isCode(err, amqp.AccessRefused):
		return false, fault.Wrap(err, fault.NotAllowed, "the broker does not let this gateway's login delete %s; delete it as an administrator, it is empty", queue)
	case err != nil:
		return false, broke(ctx, err)
	}
	return true, nil
}

// OldQueue says what lies in a queue of the old daemon; an empty one if it is
// not there.
func (f *Fabric) OldQueue(ctx context.Context, name string) (migrations.Queue, error) {
	q, err := f.lookAt(ctx, name)
	if isCode(err, amqp.NotFound) && errors.Is(notThere(err), migrations.ErrNoQueue) {
		return migrations.Queue{}, nil
	}
	return migrations.Queue{Ready: q.Messages, Consumers: q.Consumers}, err
}
