package herdr

import "context"

// Close closes p if herdr still shows its terminal there; a pane that is gone,
// or has another terminal, is another's business and counts as closed (herdr
// reference §11). An error says that herdr did not do it.
func (c *Client) Close(ctx context.Context, p Pane) error {
	now, err := c.PaneGet(ctx, p.ID)
	if hasCode(err, "pane_not_found") {
		return nil
	}
	if err != nil {
		return AsFault(err)
	}
	if now.TerminalID != p.Terminal {
		return nil
	}
	if err := c.PaneClose(ctx, now.PaneID); err != nil && !hasCode(err, "pane_not_found") {
		return AsFault(err)
	}
	return nil
}
